"""What a person and a program get to read: the result on disk, the console, the verdict, the picture, the page."""
