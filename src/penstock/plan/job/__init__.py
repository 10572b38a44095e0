"""The job that is predicted: one optimizer step, its layout, and which layouts are legal."""
