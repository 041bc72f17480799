"""What a checkout and a build machine need, and a user of the package never imports."""
