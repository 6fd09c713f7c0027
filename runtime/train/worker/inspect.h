// dtrain-worker --inspect: prints the contents of a file of torch.export, for `dtrain model inspect`.
#pragma once

namespace dtrain::worker {

// True if the command line asks for an inspection.
bool asks_for_inspection(int argc, char** argv);

// dtrain-worker --inspect FILE [--json]. Prints inputs, outputs, tensors, operators, and whether the file can be
// trained and evaluated; a file that is refused is an error with its cause. Returns the process's exit code: 0; 2 for a
// file that is missing, damaged or not supported.
int inspect_model(int argc, char** argv);

}  // namespace dtrain::worker
