"""Sites that meet in a bucket: signed objects, rounds, and what a site does with them."""
