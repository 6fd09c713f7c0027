// README's list of what is not supported yet is what the reader of experiments refuses: each word of each key is tried,
// and each pair of words of a section's keys, with ranks on CPUs and on GPUs. To write the list anew:
//   DTRAIN_REWRITE_DOCUMENTS=1 build/release/tests/config_test --gtest_filter='NotSupported*'
#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include <gtest/gtest.h>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/text.h"
#include "dtrain/config/experiment.h"
#include "harness/document_table.h"
#include "temporary_file.h"

namespace dtrain::config {
namespace {

// A key and a value of it, as a JSON pointer and JSON.
struct Setting {
  std::string path;  // "optimizations.mixed_precision"
  Json value;
  std::string word() const { return value.is_string() ? value.get<std::string>() : value.dump(); }
  std::string text() const { return "`" + path + ": " + word() + "`"; }
};

// The words and truth values that all keys may have.
class Settings : public Keys {
 public:
  void visit(const Key& key, KeyType& type) override {
    const std::string path = section_.empty() ? key.name : section_ + "." + key.name;
    add(path, type.schema(key));
    for (const std::string& word : type.not_yet_words()) all_.push_back({path, word});
    if (key.keys_elsewhere) return;
    const std::string outside = std::exchange(section_, path);
    type.visit_keys(*this);
    section_ = outside;
  }
  const std::vector<Setting>& all() const { return all_; }

 private:
  void add(const std::string& path, const Json& schema) {
    if (!schema.is_object()) return;
    if (schema.value("type", Json()) == "boolean") {
      all_.push_back({path, true});
      all_.push_back({path, false});
    }
    for (const Json& word : schema.value("enum", Json::array())) {
      if (word.is_string()) all_.push_back({path, word});
    }
  }

  std::string section_;
  std::vector<Setting> all_;
};

// "optimizations" of "optimizations.gradient_compression.kind"
std::string section_of(const std::string& path) {
  return path.substr(0, path.find('.'));
}

// Whether an experiment with these settings is refused because they are not supported yet.
bool is_refused(const std::vector<Setting>& settings, const char* slot_type) {
  Json experiment = {{"entrypoint", "trial"},
                     {"hyperparameters", {{"global_batch_size", 64}}},
                     {"searcher", {{"max_length", {{"epochs", 2}}}}}};
  for (const Setting& one : settings) {
    experiment[Json::json_pointer("/" + join(split(one.path, '.'), "/"))] = one.value;
  }
  experiment["resources"]["slot_type"] = slot_type;
  const TemporaryFile file(experiment.dump());
  try {
    read_experiment(file.path());
  } catch (const ConfigError& error) {
    const std::string text = describe(error);
    for (const char* refusal : {"is not supported yet", kNotForCpus}) {
      if (text.find(refusal) != std::string::npos) return true;
    }
  }
  return false;
}

class Refusals {
 public:
  explicit Refusals(const std::vector<Setting>& settings) {
    for (const Setting& one : settings) {
      if (one.path != "resources.slot_type") try_together({one});
    }
    for (std::size_t i = 0; i < settings.size(); ++i) {
      for (std::size_t j = i + 1; j < settings.size(); ++j) {
        const Setting &one = settings[i], &other = settings[j];
        const bool may_meet = section_of(one.path) == section_of(other.path) && one.path.find('.') != one.path.npos &&
                              one.path != other.path && !other.path.starts_with("resources.");
        if (may_meet) try_together({one, other});
      }
    }
  }
  std::string list() const {
    std::string lines;
    for (const auto& [where, words_of_keys] : by_place_) {
      for (const auto& [key, words] : words_of_keys) {
        lines +=
            "- " + where + ", " + key + ": " + join(std::vector<std::string>(words.begin(), words.end()), ", ") + "\n";
      }
    }
    return lines;
  }

 private:
  // Where one of several settings is refused alone, nothing is said of them together.
  bool refuses(const std::vector<Setting>& settings, const char* slot_type) {
    for (const Setting& one : settings) {
      if (alone_[slot_type].contains(one.text())) return false;
    }
    const bool refused = is_refused(settings, slot_type);
    if (refused && settings.size() == 1) alone_[slot_type].insert(settings.front().text());
    return refused;
  }
  void try_together(const std::vector<Setting>& settings) {
    const bool on_cpus = refuses(settings, "cpu"), on_gpus = refuses(settings, "cuda");
    if (!on_cpus && !on_gpus) return;
    const bool alone_elsewhere = std::any_of(settings.begin(), settings.end(), [&](const Setting& one) {
      return alone_["cpu"].contains(one.text()) || alone_["cuda"].contains(one.text());
    });
    const bool everywhere = (on_cpus && on_gpus) || (settings.size() > 1 && alone_elsewhere);
    const std::string key =
        (settings.size() > 1 ? settings.front().text() + " with " : "") + "`" + settings.back().path + "`";
    const char* const where = everywhere ? "everywhere" : on_cpus ? "on CPUs" : "on GPUs";
    by_place_[where][key].insert("`" + settings.back().word() + "`");
  }

  std::map<std::string, std::set<std::string>> alone_;
  std::map<std::string, std::map<std::string, std::set<std::string>>> by_place_;  // words of keys, by where
};

TEST(NotSupported, TheListOfTheReadmeIsWhatTheReaderRefuses) {
  Experiment defaults;
  Settings settings;
  declare_keys(settings, defaults);
  ASSERT_GT(settings.all().size(), 50u);
  const std::string list = Refusals(settings.all()).list();
  const std::string file = DTRAIN_SOURCE_DIR "/README.md";
  harness::expect_document(file, harness::with_table(read_file(file), "keys: not supported yet", list),
                           "config_test --gtest_filter='NotSupported*'");
}

}  // namespace
}  // namespace dtrain::config
