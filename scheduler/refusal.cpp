#include <algorithm>
#include <bitset>
#include <set>

#include "dtrain/base/text.h"
#include "dtrain/config/batch_split.h"
#include "dtrain/scheduler/placement.h"
#include "eligible.h"

namespace dtrain::scheduler {
namespace {

constexpr std::size_t kNamesShown = 4;
constexpr std::size_t kSizesShown = 6;

using Counts = std::bitset<kMostSlots + 1>;

std::string names(const std::vector<const AgentSlots*>& agents) {
  std::vector<std::string> ids;
  for (const AgentSlots* agent : agents) ids.push_back(agent->id);
  const auto shown = std::min(ids.size(), kNamesShown);
  std::partial_sort(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(shown), ids.end());
  const std::size_t more = ids.size() - shown;
  ids.resize(shown);
  return join(ids, ", ") + (more == 0 ? "" : " and " + std::to_string(more) + " more");
}

// Returns the numbers of slots that fit when everything is free.
Counts fitting_counts(const SizedAgents& sizes, const SlotRequest& request) {
  Counts counts;
  const int largest = sizes.empty() ? 0 : std::min(sizes.begin()->first, kMostSlots);
  for (int count = 1; count <= largest; ++count) counts.set(static_cast<std::size_t>(count));
  if (request.is_single_node) return counts;
  Counts all;  // sums of whole agents
  all.set(0);
  for (const auto& [size, agents] : sizes) {
    const auto width = static_cast<std::size_t>(size);
    std::size_t left = std::min(agents.size(), kMostSlots / width);
    for (std::size_t count = 1; count <= left; ++count) counts.set(count * width);
    for (std::size_t part = 1; left > 0; part *= 2) {  // any number is a sum of 1, 2, 4, … and a rest
      const std::size_t taken = std::min(part, left);
      left -= taken;
      all |= all << (taken * width);
    }
  }
  if (request.allow_heterogeneous_fits) counts |= all;
  counts.reset(0);
  return counts;
}

// Adds the numbers of slots that fit on all agents together, with as many on each.
void add_equal_shares(std::span<const AgentSlots> agents, SlotRequest request, Counts& counts) {
  std::vector<AgentSlots> free(agents.begin(), agents.end());
  for (AgentSlots& agent : free) {
    if (!agent.cores.empty()) agent.free = static_cast<int>(agent.cores.size());
  }
  for (request.slots = 2; request.slots <= kMostSlots; ++request.slots) {
    if (!counts[static_cast<std::size_t>(request.slots)] && all_agents(free, request)) {
      counts.set(static_cast<std::size_t>(request.slots));
    }
  }
}

std::string why_not_one(const SizedAgents& sizes, const SlotRequest& request) {
  const auto& [size, agents] = *sizes.begin();
  return "one agent: none has " + std::to_string(request.slots) + " slots; the largest (" + names(agents) +
         (agents.size() == 1 ? ") has " : ") have ") + std::to_string(size);
}

std::string why_not_this_size(int size, const std::vector<const AgentSlots*>& agents, int slots) {
  const std::string head = "agents of one size: " + count_of(agents.size(), "agent") + " of " + count_of(size, "slot") +
                           " (" + names(agents) + "): ";
  if (slots % size != 0) return head + std::to_string(slots) + " is not a multiple of " + std::to_string(size);
  return head + "only " + std::to_string(static_cast<std::int64_t>(agents.size()) * size) + " slots together";
}

std::vector<std::string> why_not(const SizedAgents& sizes, const SlotRequest& request) {
  std::vector<std::string> rules{why_not_one(sizes, request)};
  if (request.is_single_node) {
    rules.emplace_back("several agents: excluded by resources.is_single_node: true");
    return rules;
  }
  std::size_t left = kSizesShown;
  for (const auto& [size, agents] : sizes) {
    if (left-- == 0) {
      rules.push_back("agents of one size: nor any of " + count_of(sizes.size() - kSizesShown, "smaller size"));
      break;
    }
    rules.push_back(why_not_this_size(size, agents, request.slots));
  }
  rules.push_back("agents of different sizes: " +
                  (request.allow_heterogeneous_fits
                       ? "no set of whole agents has exactly " + std::to_string(request.slots) + " slots together"
                       : std::string("not allowed (scheduler.allow_heterogeneous_fits: false)")));
  return rules;
}

// Returns a line for each reason for which agents were left out.
std::vector<std::string> left_out(std::span<const AgentSlots> agents, const SlotRequest& request) {
  std::vector<const AgentSlots*> other_type;
  std::vector<const AgentSlots*> other_pool;
  std::set<std::string> pools;
  for (const AgentSlots& agent : agents) {
    if (agent.resource_pool != request.resource_pool) {
      other_pool.push_back(&agent);
      pools.insert(agent.resource_pool);
    } else if (!is_eligible(agent, request)) {
      other_type.push_back(&agent);
    }
  }
  std::vector<std::string> lines;
  if (!other_type.empty()) {
    const bool cpu = request.slot_type == config::AgentSlotType::kCpu;
    lines.push_back("left out: " + names(other_type) + (other_type.size() == 1 ? " has " : " have ") +
                    (cpu ? "GPU slots, but CPU slots are requested" : "CPU slots, but GPU slots are requested"));
  }
  if (!other_pool.empty()) {
    lines.push_back("left out: " + names(other_pool) + ", not of the resource pool " + request.resource_pool +
                    " but of " + join(std::vector<std::string>(pools.begin(), pools.end()), ", "));
  }
  return lines;
}

// Returns "11 (with a global_batch_size of 121 or 132)".
std::string with_batches(int slots, std::int64_t batch) {
  const std::vector<std::int64_t> sizes = config::sizes_that_divide(batch, slots);
  if (sizes.size() == 1 && sizes.front() == batch) return std::to_string(slots);
  std::vector<std::string> parts;
  for (const std::int64_t size : sizes) parts.push_back(std::to_string(size));
  return std::to_string(slots) + " (with a global_batch_size of " + join(parts, " or ") + ")";
}

std::string remedy_of(const Refusal& refusal, std::int64_t batch) {
  std::vector<std::string> parts;
  for (const auto& count : {refusal.below, refusal.above}) {
    if (count) parts.push_back(with_batches(*count, batch));
  }
  if (parts.empty()) return {};
  return "the nearest resources.slots_per_trial " + std::string(parts.size() == 1 ? "that fits: " : "that fit: ") +
         join(parts, ", or ");
}

// Returns a line for each agent whose slots are made of cores: the slots of the request for which it has room.
std::vector<std::string> in_cores(std::span<const AgentSlots> agents, const SlotRequest& request) {
  std::vector<std::string> lines;
  for (const AgentSlots& agent : agents) {
    if (agent.cores.empty() || request.cores_per_slot == 0 || !is_eligible(agent, request)) continue;
    const auto cores = static_cast<int>(agent.cores.size());
    SlotRequest held = request;
    held.slots = room_for(agent, request, cores);
    lines.push_back(agent.id + " has " + count_of(agent.cores.size(), "core") + ": room for " +
                    (held.slots == 0 ? "no slot of " + count_of(request.cores_per_slot, "core") : slots_text(held)));
  }
  return lines;
}

// Suggests the largest cores_per_slot with which one agent can hold all slots; empty: no slots are made of cores.
std::string fewer_cores(std::span<const AgentSlots> agents, const SlotRequest& request) {
  int most = 0;
  bool in_cores = false;
  for (const AgentSlots& agent : agents) {
    if (agent.cores.empty() || request.cores_per_slot == 0 || !is_eligible(agent, request)) continue;
    in_cores = true;
    most = std::max(most, static_cast<int>(agent.cores.size()) / std::max(1, request.slots));
  }
  if (!in_cores) return {};
  return "resources.cores_per_slot: " +
         (most > 0 ? std::to_string(most) + ", or auto (all cores)" : "auto, with which slots share cores");
}

}  // namespace

std::string Refusal::text() const {
  std::string text = reason;
  for (const std::string& rule : rules) text += "\n  " + rule;
  return text;
}

std::optional<Refusal> never_fits(std::span<const AgentSlots> all, const SlotRequest& request,
                                  std::int64_t global_batch_size) {
  std::vector<AgentSlots> converted;
  const std::span<const AgentSlots> agents = in_slots(all, request, converted);
  std::vector<const AgentSlots*> eligible;
  for (const AgentSlots& agent : agents) {
    if (agent.slots > 0 && is_eligible(agent, request)) eligible.push_back(&agent);
  }
  const SizedAgents sizes = by_size(eligible);
  Counts counts = fitting_counts(sizes, request);
  const bool of_cores = std::ranges::any_of(all, [](const AgentSlots& agent) { return !agent.cores.empty(); });
  if (of_cores && request.cores_per_slot == 0 && !request.is_single_node) add_equal_shares(all, request, counts);
  if (request.slots >= 1 && request.slots <= kMostSlots && counts[static_cast<std::size_t>(request.slots)]) {
    return std::nullopt;
  }
  Refusal refusal;
  refusal.reason = slots_text(request) + " never fit" + (request.slots == 1 ? "s" : "") +
                   " on this cluster, even when all of it is free";
  refusal.rules = in_cores(all, request);
  const bool only_cores = !refusal.rules.empty() && all.size() == 1;
  if (!sizes.empty() && !only_cores) {
    for (std::string& line : why_not(sizes, request)) refusal.rules.push_back(std::move(line));
  }
  for (std::string& line : left_out(agents, request)) refusal.rules.push_back(std::move(line));
  for (int count = std::min(request.slots - 1, kMostSlots); count >= 1 && !refusal.below; --count) {
    if (counts[static_cast<std::size_t>(count)]) refusal.below = count;
  }
  for (int count = std::max(request.slots + 1, 1); count <= kMostSlots && !refusal.above; ++count) {
    if (counts[static_cast<std::size_t>(count)]) refusal.above = count;
  }
  std::vector<std::string> remedies{remedy_of(refusal, global_batch_size), fewer_cores(all, request)};
  std::erase(remedies, "");
  refusal.remedy = remedies.empty() ? "`dtrain agent list` shows the agents and their pools" : join(remedies, "; or ");
  return refusal;
}

}  // namespace dtrain::scheduler
