// GPUs of this machine that a run leaves idle, since training uses CPUs alone so far. May wait for a driver for some
// seconds where that hangs.
#pragma once

#include <string>

#include "dtrain/config/experiment.h"

namespace dtrain::run {

// "2 GPUs (Tesla T4, Tesla T4)"; empty: there are none, or the experiment asks for CPUs (slot_type: cpu).
std::string find_unused_gpus(const config::Experiment& experiment);

// The warning about them.
std::string unused_gpus_warning(const std::string& gpus);

}  // namespace dtrain::run
