// GPUs of this machine, and settings for GPUs, that a run on CPUs does not use.
#pragma once

#include <string>
#include <vector>

#include "dtrain/config/experiment.h"
#include "dtrain/host/gpus.h"
#include "environment.h"

namespace dtrain::run {

// "2 GPUs (Tesla T4, Tesla T4)"; empty: there are none.
std::string gpus_text(const std::vector<host::VisibleGpu>& gpus);

// Returns the same text for this machine's GPUs that CUDA_VISIBLE_DEVICES (of `variables`) leaves; empty: there are
// none, or the experiment asks for CPUs (slot_type: cpu). May wait some seconds for a driver that hangs.
std::string find_unused_gpus(const config::Experiment& experiment, const Variables& variables);

// Returns the warning about them, and the reason why they are not used.
std::string unused_gpus_warning(const std::string& gpus, const std::string& why);

// Returns the warning about parameters of rules that judge only GPUs; empty: all are at their defaults.
std::string unused_rules_warning(const config::Experiment& experiment);

}  // namespace dtrain::run
