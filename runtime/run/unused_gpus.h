// GPUs of this machine, and settings for GPUs, that a run does not use, because training uses only CPUs so far.
#pragma once

#include <string>

#include "dtrain/config/experiment.h"

namespace dtrain::run {

// "2 GPUs (Tesla T4, Tesla T4)"; empty: there are none, or the experiment asks for CPUs (slot_type: cpu). May wait some
// seconds for a driver that hangs.
std::string find_unused_gpus(const config::Experiment& experiment);

// The warning about them.
std::string unused_gpus_warning(const std::string& gpus);

// The warning about parameters of rules that judge only GPUs; empty: all are at their defaults.
std::string unused_rules_warning(const config::Experiment& experiment);

}  // namespace dtrain::run
