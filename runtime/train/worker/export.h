// dtrain-worker --export: writes a checkpoint of a `model:` run as a file of the model's kind, which Python reads:
// TorchScript (torch.jit.load) or a program of torch.export (torch.export.load).
#pragma once

namespace dtrain::worker {

// True if the command line asks for an export.
bool asks_for_export(int argc, char** argv);

// dtrain-worker --export CHECKPOINT OUT [--model FILE] [--eval-out FILE]. Prints errors. Returns the process's exit
// code: 0; 1 for a file that cannot be read or written; 2 for bad input.
int export_checkpoint(int argc, char** argv);

}  // namespace dtrain::worker
