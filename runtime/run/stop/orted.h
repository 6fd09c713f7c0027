// Open MPI's daemon `orted`, which is the parent of the ranks that it starts. Plain functions.
#pragma once

namespace dtrain::run {

// Ends the `orted` that is the parent of this process: first by SIGTERM, so that it ends its other ranks and removes
// its files, a moment later by SIGKILL. Does nothing if the parent is another program (mpirun itself on its own host).
void end_daemon_above();

}  // namespace dtrain::run
