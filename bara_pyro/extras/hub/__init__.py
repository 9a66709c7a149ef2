"""Share runs: PEFT, plain LoRA, the Hugging Face hub, `Trainer`, language models as folders."""
