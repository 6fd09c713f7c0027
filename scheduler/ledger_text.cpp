// How a claim and a request are written down.
#include <charconv>

#include "dtrain/base/json.h"
#include "dtrain/base/text.h"
#include "ledger_impl.h"

namespace dtrain::scheduler {

std::string to_text(const Claim& claim) {
  std::vector<std::string> shares;
  for (const ClaimedShare& share : claim) {
    std::vector<std::string> slots;
    for (const int slot : share.slots) slots.push_back(std::to_string(slot));
    shares.push_back(share.agent + ":" + join(slots, ","));
  }
  return join(shares, ";");
}

Claim claim_of(const std::string& text) {
  Claim claim;
  if (text.empty()) return claim;
  for (const std::string& share : split(text, ';')) {
    const auto colon = share.rfind(':');
    ClaimedShare claimed{.agent = share.substr(0, colon), .slots = {}};
    for (const std::string& slot : split(share.substr(colon + 1), ',')) {
      int index = 0;
      std::from_chars(slot.data(), slot.data() + slot.size(), index);
      claimed.slots.push_back(index);
    }
    claim.push_back(std::move(claimed));
  }
  return claim;
}

std::string to_text(const TaskRequest& request) {
  Json agents = Json::array();
  for (const AgentSlots& agent : request.agents) {
    agents.push_back({agent.id, agent.slots, agent.resource_pool, static_cast<int>(agent.slot_type)});
  }
  const SlotRequest& slots = request.slots;
  return to_line({{"slots", slots.slots},
                  {"is_single_node", slots.is_single_node},
                  {"resource_pool", slots.resource_pool},
                  {"slot_type", static_cast<int>(slots.slot_type)},
                  {"policy", static_cast<int>(slots.policy)},
                  {"allow_heterogeneous_fits", slots.allow_heterogeneous_fits},
                  {"max_slots", request.max_slots ? Json(*request.max_slots) : Json()},
                  {"agents", agents}});
}

TaskRequest request_of(const std::string& text) {
  const Json json = Json::parse(text);
  TaskRequest request;
  request.slots = {.slots = json.at("slots"),
                   .is_single_node = json.at("is_single_node"),
                   .resource_pool = json.at("resource_pool"),
                   .slot_type = static_cast<config::AgentSlotType>(json.at("slot_type").get<int>()),
                   .policy = static_cast<config::FittingPolicy>(json.at("policy").get<int>()),
                   .allow_heterogeneous_fits = json.at("allow_heterogeneous_fits")};
  if (!json.at("max_slots").is_null()) request.max_slots = json.at("max_slots").get<int>();
  for (const Json& agent : json.at("agents")) {
    const int slots = agent.at(1);
    request.agents.push_back({.id = agent.at(0),
                              .slots = slots,
                              .free = slots,
                              .resource_pool = agent.at(2),
                              .slot_type = static_cast<config::AgentSlotType>(agent.at(3).get<int>())});
  }
  return request;
}

}  // namespace dtrain::scheduler
