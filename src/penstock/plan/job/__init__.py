"""What is predicted: the job of one optimizer step, its layout, and which layouts are legal."""
