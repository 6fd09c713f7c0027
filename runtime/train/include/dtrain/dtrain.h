// The header that a trial program includes.
#pragma once

#include <torch/torch.h>

#include "dtrain/train/add_norm.h"
#include "dtrain/train/gradient_checkpointing.h"
#include "dtrain/train/linear_cross_entropy.h"
#include "dtrain/train/run_trial.h"
