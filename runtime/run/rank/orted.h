// Open MPI's daemon, from the point of view of a rank that it has started. Plain functions.
#pragma once

namespace dtrain::run {

// Ends the `orted` that this process is a child of: first by SIGTERM, so that it takes its other ranks and its files
// with it, a moment later by SIGKILL. Nothing where the parent is another program (mpirun itself on its own host).
void end_daemon_above();

}  // namespace dtrain::run
