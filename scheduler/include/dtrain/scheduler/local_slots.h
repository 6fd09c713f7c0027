// The CPU slots of this machine: which cores each is bound to. Any thread.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace dtrain::scheduler {

struct Slot {
  int index = 0;
  std::vector<int> cpus;  // logical CPUs, ascending; never empty
};

struct LocalSlots {
  std::vector<Slot> slots;
  std::string warning;  // says that slots share cores; empty: they do not
};

// Divides physical cores (each the list of its logical CPUs) evenly over `count` slots, neighbours together. With
// more slots than cores the logical CPUs are divided; with more slots than those, slots share them.
// ConfigError if count < 1 or there is no core.
LocalSlots divide_cores(std::span<const std::vector<int>> cores, int count);

// The same for the cores this process may use.
LocalSlots local_slots(int count);

// How many of these cores the logical CPUs belong to; and the CPUs of the first `count` of those cores.
int count_cores(std::span<const std::vector<int>> cores, const std::vector<int>& cpus);
std::vector<int> first_cores(std::span<const std::vector<int>> cores, const std::vector<int>& cpus, int count);

}  // namespace dtrain::scheduler
