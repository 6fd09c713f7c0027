#include "network/network_choice.h"

#include <algorithm>
#include <cstdio>
#include <set>

#include "dtrain/base/text.h"
#include "dtrain/base/units.h"

namespace dtrain::run {
namespace {

constexpr double kAlike = 0.9;  // measurements of one network vary by this much

std::string rate_text(double bits_per_second) {
  char text[32];
  const bool giga = bits_per_second >= 1e9;
  const double value = bits_per_second / (giga ? 1e9 : 1e6);
  std::snprintf(text, sizeof text, value < 100 ? "%.1f %s" : "%.0f %s", value, giga ? "Gbit/s" : "Mbit/s");
  return text;
}

// Whether the interface has the same name on every host.
bool one_name(const CommonNetwork& network) {
  return std::all_of(network.ends.begin(), network.ends.end(),
                     [&](const NetworkEnd& end) { return end.interface == network.ends.front().interface; });
}

std::string names(const CommonNetwork& network) {
  if (network.ends.empty()) return {};
  std::set<std::string> all;
  for (const NetworkEnd& end : network.ends) all.insert(end.interface);
  return join(std::vector<std::string>(all.begin(), all.end()), "|");
}

bool is_v6(const CommonNetwork& network) {
  return network.network.find(':') != std::string::npos;
}

}  // namespace

std::string CommonNetwork::value() const {
  if (ends.empty()) return network;
  return one_name(*this) || network.empty() ? ends.front().interface : network;
}

std::string CommonNetwork::describe() const {
  return names(*this) + (network.empty() ? " (routed)" : " (" + network + ")");
}

std::string CommonNetwork::render() const {
  std::string text = describe();
  if (figures) {
    text += ": " + rate_text(figures->bits_per_second) + ", round trip " + format_duration(figures->round_trip);
  }
  return usable() ? text : text + ": " + problem;
}

void sort_by_speed(std::vector<CommonNetwork>& networks) {
  // Repeatedly picks the fastest of the rest: "within a tenth of the best" is no ordering that a sort could use.
  const auto measured = [](const CommonNetwork& one) { return one.usable() && one.figures.has_value(); };
  std::stable_partition(networks.begin(), networks.end(), measured);
  const auto end = std::find_if_not(networks.begin(), networks.end(), measured);
  for (auto next = networks.begin(); next != end; ++next) {
    double best_rate = 0;
    for (auto one = next; one != end; ++one) best_rate = std::max(best_rate, one->figures->bits_per_second);
    const auto is_fast = [&](const CommonNetwork& one) { return one.figures->bits_per_second >= kAlike * best_rate; };
    double best_trip = 0;
    for (auto one = next; one != end; ++one) {
      const auto trip = static_cast<double>(one->figures->round_trip.count());
      if (is_fast(*one) && (best_trip == 0 || trip < best_trip)) best_trip = trip;
    }
    const auto is_best = [&](const CommonNetwork& one) {
      return is_fast(one) && static_cast<double>(one.figures->round_trip.count()) * kAlike <= best_trip;
    };
    auto best = std::find_if(next, end, [&](const CommonNetwork& one) { return is_best(one) && !is_v6(one); });
    if (best == end) best = std::find_if(next, end, is_best);
    std::rotate(next, best, best + 1);
  }
}

std::string several_networks_warning(const NetworkChoice& choice) {
  std::vector<std::string> usable;
  for (const CommonNetwork& one : choice.networks) {
    if (one.usable()) usable.push_back(one.describe());
  }
  if (usable.size() < 2) return {};
  return "the hosts have several networks in common: " + join(usable, ", ") + "; taken: " + usable.front() +
         ", the fastest (task_container_defaults.dtrain_network_interface in the cluster file says which without "
         "measuring)";
}

Json to_json(const NetworkChoice& choice) {
  Json networks = Json::array();
  for (const CommonNetwork& one : choice.networks) {
    Json ends = Json::array();
    for (const NetworkEnd& end : one.ends) {
      Json row{{"host", end.host}, {"interface", end.interface}, {"address", end.address}};
      if (end.link_bits_per_second) row["link_bits_per_second"] = *end.link_bits_per_second;
      ends.push_back(std::move(row));
    }
    Json row{{"interface", one.value()}, {"network", one.network.empty() ? Json() : Json(one.network)}};
    row["bits_per_second"] = one.figures ? Json(one.figures->bits_per_second) : Json();
    row["round_trip_us"] = one.figures ? Json(static_cast<double>(one.figures->round_trip.count()) / 1e3) : Json();
    if (!one.problem.empty()) row["problem"] = one.problem;
    row["hosts"] = std::move(ends);
    networks.push_back(std::move(row));
  }
  return {{"interface", choice.value()}, {"reason", choice.reason}, {"networks", networks}};
}

std::string render_network(const NetworkChoice& choice) {
  std::string text;
  for (const CommonNetwork& one : choice.networks) {
    text += text.empty() ? "network     " : "      or    ";
    text += one.render();
    if (&one == &choice.networks.front()) text += "; " + choice.reason;
    text += "\n";
  }
  return text;
}

}  // namespace dtrain::run
