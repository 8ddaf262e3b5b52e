def run():
    return "skipped", "x"
