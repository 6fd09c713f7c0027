// The CPU slots of this machine, with the cores to which each is bound. Any thread.
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

// Divides the cores that this process may use.
LocalSlots local_slots(int count);

// Return the number of these cores to which the logical CPUs belong, and the CPUs of the first `count` of those cores.
int count_cores(std::span<const std::vector<int>> cores, const std::vector<int>& cpus);
std::vector<int> first_cores(std::span<const std::vector<int>> cores, const std::vector<int>& cpus, int count);

}  // namespace dtrain::scheduler
