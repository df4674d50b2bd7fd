class Explained:
    pass
