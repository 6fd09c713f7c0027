// Which slots are free for a request, and which of them it gets. Pure, any thread. Private to scheduler.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "queue.h"

namespace dtrain::scheduler {

// Returns the holders of an agent's slots by index, or of its cores by number, as far as this launch sees these.
std::map<int, const Holder*> held_of(const AgentSlots& agent, const HeldSlots& held);

// Returns the agents that some placement of the request may use, with any number of slots that it may get; or the names
// of their slots' keys.
std::set<std::string> usable_agents(const TaskRequest& request);
std::set<std::string> usable_names(const TaskRequest& request);

// The tasks of a name that hold slots, and how many.
struct InUse {
  int slots = 0;
  std::map<TaskId, std::string> tasks;
};
InUse in_use_by_name(const HeldSlots& held, const std::string& name);

// Returns the claim with the most slots that fits, of `least` to `most`: on slots that are not held, and on no agent
// that has a slot in `reserved`. Empty: none fits.
std::optional<Claim> largest_claim(const TaskRequest& request, int least, int most, const HeldSlots& held,
                                   const std::set<std::string>& reserved = {});

// Holds all slots that the request's agents have, or those of agents with a slot in `names`, except those of `own`.
void hold_all_but(const Claim& own, const TaskRequest& request, HeldSlots& held,
                  const std::set<std::string>* names = nullptr);

// Returns the slots that stay held after each of these tasks has given up all but a part of its own.
HeldSlots held_after(const HeldSlots& held, const std::map<TaskId, Claim>& kept);

}  // namespace dtrain::scheduler
