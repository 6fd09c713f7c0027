#include "dtrain/config/tracking.h"

#include <algorithm>

#include "document/section.h"
#include "document/value.h"
#include "dtrain/base/text.h"

namespace dtrain::config {
namespace {

const char* where_keys_are(TrackerTool tool) {
  switch (tool) {
    case TrackerTool::kMlflow:
      return "MLflow reads MLFLOW_TRACKING_USERNAME, MLFLOW_TRACKING_PASSWORD and MLFLOW_TRACKING_TOKEN, or the file "
             "~/.mlflow/credentials";
    case TrackerTool::kWandb:
      return "W&B reads WANDB_API_KEY, or what `wandb login` has kept";
    case TrackerTool::kTrackio:
      return "trackio reads TRACKIO_WRITE_TOKEN or HF_TOKEN";
  }
  return "";
}

constexpr const char* kForm =
    "a list of mlflow, wandb and trackio, each with or without an address: [mlflow: http://host:5000]";

class TrackingForm : public KeyType {
 public:
  explicit TrackingForm(std::vector<Tracker>& trackers) : trackers_(trackers) {}

  void read(Section& section, const Key& key) override {
    const Value* value = section.find(key.name);
    if (!value || value->is_null()) return;
    if (value->kind != Value::Kind::kList) return section.report(*value, key.name, must_be(kForm, *value));
    for (const Value& item : value->items) read_item(section, key, item);
  }
  Json to_json() const override {
    Json json = Json::array();
    for (const Tracker& tracker : trackers_) {
      const char* const word = word_of(kTrackerTools, tracker.tool);
      json.push_back(tracker.address.empty() ? Json(word) : Json{{word, tracker.address}});
    }
    return json;
  }
  Json schema(const Key&) const override {
    const Json address{{"type", {"string", "null"}}, {"pattern", "^[^@?\\s]*$"}};
    Json properties = Json::object();
    for (const auto& [word, tool] : kTrackerTools) properties[word] = address;
    return {{"type", {"array", "null"}},
            {"items",
             {{"anyOf",
               {Json{{"enum", words_of(kTrackerTools)}}, Json{{"type", "object"},
                                                              {"minProperties", 1},
                                                              {"maxProperties", 1},
                                                              {"additionalProperties", false},
                                                              {"properties", std::move(properties)}}}}}}};
  }
  std::string values() const override { return "list of `mlflow`, `wandb`, `trackio`, or of `mlflow: ADDRESS`"; }

 private:
  void read_item(Section& section, const Key& key, const Value& item) {
    const bool has_address = item.is_map() && item.entries.size() == 1;
    if (!item.is_scalar() && !has_address) return section.report(item, key.name, must_be(kForm, item));
    const std::string& word = has_address ? item.entries.front().key : item.text;
    const std::vector<std::string> words = words_of(kTrackerTools);
    if (std::find(words.begin(), words.end(), word) == words.end()) {
      const auto near = nearest(word, words);
      return section.report(
          item, key.name,
          "knows no tracker " + quote(word) + (near ? "; did you mean " + *near + "?" : "") + " It takes " + kForm);
    }
    Tracker tracker{.tool = meaning_of(kTrackerTools, word)};
    if (has_address) {
      const Value& address = item.entries.front().value;
      if (!address.is_scalar() && !address.is_null()) return section.report(item, key.name, must_be(kForm, item));
      tracker.address = address.is_null() ? "" : address.text;
    }
    if (const std::string why = why_no_address(tracker.tool, tracker.address); !why.empty()) {
      return section.report(item, key.name, "has for " + word + " an address that " + why);
    }
    if (std::find(trackers_.begin(), trackers_.end(), tracker) != trackers_.end()) {
      return section.report(item, key.name, "names the same tracker twice: " + word);
    }
    trackers_.push_back(std::move(tracker));
  }

  std::vector<Tracker>& trackers_;
};

}  // namespace

std::string why_no_address(TrackerTool tool, const std::string& address) {
  const std::string elsewhere =
      std::string(", which would stay in the run's folder; leave it out: ") + where_keys_are(tool);
  if (address.find('@') != std::string::npos) return "names a user, or holds a password" + elsewhere;
  if (address.find('?') != std::string::npos) return "has a query, which may hold a key" + elsewhere;
  const bool bad = std::any_of(address.begin(), address.end(), [](unsigned char c) { return c <= ' ' || c == 0x7f; });
  if (bad) return "has a space or a control character";
  const bool is_http = address.starts_with("http://") || address.starts_with("https://");
  const bool is_space = tool == TrackerTool::kTrackio && std::count(address.begin(), address.end(), '/') == 1;
  if (address.empty() || is_http || tool == TrackerTool::kMlflow || is_space) return "";
  return std::string("must begin with http:// or https://") +
         (tool == TrackerTool::kTrackio ? ", or be a Space: user/name" : "");
}

std::unique_ptr<KeyType> tracking_form(std::vector<Tracker>& trackers) {
  return std::make_unique<TrackingForm>(trackers);
}

}  // namespace dtrain::config
