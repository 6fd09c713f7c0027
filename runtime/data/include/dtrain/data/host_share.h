// Keeps a data set in memory once per host instead of once per rank.
#pragma once

#include <functional>
#include <string>

#include "dtrain/base/shared_memory.h"

namespace dtrain::data {

// Makes memory once per host: runs `make` on one local rank and maps its result on the others, possibly read-only.
// Collective over the ranks of a host: all call it in the same order with the same names.
using HostShare = std::function<SharedMemory(const std::string& name, const std::function<SharedMemory()>& make)>;

// For programs of one rank: runs `make` in this process.
HostShare no_sharing();

}  // namespace dtrain::data
