"""What all our web servers share."""
