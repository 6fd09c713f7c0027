"""Trains as optimizers_cases.py says, and keeps what it has seen."""
import dtrain
import optimizers_cases as cases
import torch

session = dtrain.init()
seen = cases.train(session.hyperparameters["kind"], session)
if session.is_main:
    torch.save(seen, session.run_dir / "seen.pt")
