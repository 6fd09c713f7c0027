// How the ranks of a generation find and reach each other. Each function connects this rank's control plane, enters
// that generation (Membership::enter()), and returns once all its ranks have connected. They block, at most for the
// timeout in the options, and throw CommError.
#pragma once

#include <filesystem>
#include <string>

#include "dtrain/comm/control.h"
#include "dtrain/config/experiment.h"
#include "environment.h"
#include "rank/membership.h"

namespace dtrain::run {

// A world of one rank.
void connect_alone(Membership& membership, comm::ControlOptions options);

// Ranks of one host. Rank 0 writes its address and a fresh secret into `file` (link/rendezvous.h), which is removed
// once all have connected.
void connect_by_file(Membership& membership, comm::ControlOptions options, const std::filesystem::path& file);

// MPI carries rank 0's address. If `options` has no secret, MPI carries one as well, unencrypted like all of its
// traffic. `network_interface`: the one that rank 0 listens on if there are several hosts; empty: the one with the
// default route.
void connect_by_mpi(Membership& membership, comm::ControlOptions options, const std::string& network_interface);

// Whether ranks that were started like this use MPI. ConfigError if they need it but were not started with it.
bool needs_mpi(const RankEnvironment& environment, config::Backend wanted);

}  // namespace dtrain::run
