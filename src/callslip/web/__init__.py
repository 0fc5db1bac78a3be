"""Static files of the web page. No build step and no external assets."""
