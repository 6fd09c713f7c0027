// How the ranks of a generation find and reach each other. Each function connects this rank's control plane, lets the
// membership enter that generation, and returns once all its ranks have connected. They block, up to the time-out of
// the options, and throw CommError.
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

// Ranks of one host. Rank 0 makes a secret and writes it with its address into `file` (link/rendezvous.h), which is
// removed once all have connected.
void connect_by_file(Membership& membership, comm::ControlOptions options, const std::filesystem::path& file);

// MPI carries rank 0's address. Where `options` has no secret it carries that as well, unencrypted as all that MPI
// carries. `network_interface`: that rank 0 listens on where there are several hosts; empty: the one with the default
// route.
void connect_by_mpi(Membership& membership, comm::ControlOptions options, const std::string& network_interface);

// Whether ranks started like this use MPI. ConfigError where they need it and nothing has started it.
bool needs_mpi(const RankEnvironment& environment, config::Backend wanted);

}  // namespace dtrain::run
