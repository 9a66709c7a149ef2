"""What makes training fast, unseen from models and guides; each part is switched off by one setting."""
