// `optimizations`: the keys that take several forms, and which keys exclude each other.
#include "document/value.h"
#include "dtrain/config/optimizations.h"
#include "experiment/conditions.h"
#include "keys/visitors.h"

namespace dtrain::config {
namespace {

using comm::Compression;
using comm::NoCompression;

constexpr Key kCompressionKind{.name = "kind", .text = "The method.", .required = ""};

// false, true (fp16), a kind, or a mapping of a kind and its settings.
class CompressionForm : public KeyType {
 public:
  explicit CompressionForm(Compression& compression) : compression_(compression) {}

  void read(Section& section, const Key& key) override {
    compression_ = {};
    const Value* value = section.find(key.name);
    if (!value || value->is_null() || as_boolean(*value) == false) return;
    if (value->is_map()) return read_mapping(section.section(key.name));
    if (as_boolean(*value) == true) {
      compression_ = comm::Fp16();
      return;
    }
    std::vector<std::string> choices = dtrain::words_of<Compression>();
    choices.insert(choices.begin(), {"false", "true"});
    choices.emplace_back("{kind: ..., ...}");
    const std::string kind = section.choice(key.name, "false", choices);
    if (kind == "false" || kind == choices.back()) return;
    compression_ = kind == "true" ? Compression(comm::Fp16()) : choice_named<Compression>(kind);
  }

  Json to_json() const override {
    if (std::holds_alternative<NoCompression>(compression_)) return false;
    const Json mapping = PlanWriter::write(declare_);
    return mapping.size() == 1 ? mapping.front() : mapping;
  }

  Json schema(const Key&) const override {
    Json words = {false, true, nullptr, "false", "true"};
    for (const std::string& word : dtrain::words_of<Compression>()) words.push_back(word);
    return {{"anyOf", {Json{{"enum", std::move(words)}}, SchemaWriter::write(declare_)}}};
  }

  std::string values() const override { return "true, false, a kind, or a mapping of a kind and its settings"; }
  void visit_keys(Keys& keys) override { declare_(keys); }

 private:
  void read_mapping(Section section) {
    if (!section.find(kCompressionKind.name)) return KeyReader::read_required(section, declare_);
    KeyReader::read_all(section, declare_);
  }

  Compression& compression_;
  Keys::Declare declare_ = [this](Keys& keys) { keys.one_of(kCompressionKind, compression_); };
};

// auto, true or false.
class SwitchForm : public KeyType {
 public:
  explicit SwitchForm(Switch& value) : value_(value) {}

  void read(Section& section, const Key& key) override {
    const Value* value = section.find(key.name);
    if (!value) return;
    if (const auto given = as_boolean(*value)) {
      value_ = *given ? Switch::kOn : Switch::kOff;
    } else {
      value_ = meaning_of(kWords, section.choice(key.name, "auto", words_of(kWords)));
    }
  }
  Json to_json() const override {
    if (value_ == Switch::kAuto) return "auto";
    return value_ == Switch::kOn;
  }
  Json schema(const Key&) const override { return {{"enum", {"auto", true, false, "true", "false"}}}; }
  std::string values() const override { return "`auto`, true or false"; }

 private:
  static constexpr std::array kWords{Word<Switch>{"auto", Switch::kAuto}, Word<Switch>{"true", Switch::kOn},
                                     Word<Switch>{"false", Switch::kOff}};
  Switch& value_;
};

}  // namespace

std::unique_ptr<KeyType> compression_form(Compression& compression) {
  return std::make_unique<CompressionForm>(compression);
}

std::unique_ptr<KeyType> switch_form(Switch& value) {
  return std::make_unique<SwitchForm>(value);
}

void check_together(Section& section, const Optimizations& o) {
  const bool compressed = !std::holds_alternative<NoCompression>(o.gradient_compression);
  const auto refuse_sharding = [&](const char* why_not_updates, const char* why_not_gradients) {
    if (o.sharded_optimizer == Switch::kOn) section.refuse("sharded_optimizer", why_not_updates);
    if (o.sharded_gradients == Switch::kOn) section.refuse("sharded_gradients", why_not_gradients);
  };
  if (o.local_sgd) {
    if (compressed) {
      section.refuse("gradient_compression",
                     "has no effect with local_sgd, which exchanges no gradients; use local_sgd.compression");
    }
    refuse_sharding("cannot be true with local_sgd, where every rank has its own parameters; leave it at auto",
                    "cannot be true with local_sgd, which exchanges no gradients; leave it at auto");
    if (o.ema > 0)
      section.refuse("ema", "is not supported yet with local_sgd, where every rank has its own parameters");
    constexpr const char* kNothingInBackward =
        "has no effect with local_sgd, which exchanges nothing during backward; leave it out";
    if (o.auto_tune_tensor_fusion) section.refuse("auto_tune_tensor_fusion", kNothingInBackward);
    if (o.tensor_fusion_cycle_ms) section.refuse("tensor_fusion_cycle_time", kNothingInBackward);
  } else if (compressed) {
    constexpr const char* kWholeGradients =
        "cannot be true with gradient_compression, which needs whole gradients on every rank; leave it at auto";
    refuse_sharding(kWholeGradients, kWholeGradients);
  } else if (o.sharded_gradients == Switch::kOn && o.sharded_optimizer == Switch::kOff) {
    section.refuse("sharded_gradients",
                   "cannot be true with sharded_optimizer: false, where every rank updates with all gradients; leave "
                   "one of them at auto");
  }
}

// Returns the conditions of check_together() as a schema.
Json optimizations_together() {
  const Json no_compression{{"enum", {false, nullptr, "false"}}};
  const Json not_true{{"enum", {"auto", false, "false"}}};
  return {
      {"allOf",
       {if_then(is_given("local_sgd", {{"type", "object"}}), allows({{"gradient_compression", no_compression},
                                                                     {"sharded_optimizer", not_true},
                                                                     {"sharded_gradients", not_true},
                                                                     {"ema", {{"const", 0}}},
                                                                     {"tensor_fusion_cycle_time", {{"type", "null"}}},
                                                                     {"auto_tune_tensor_fusion", {{"const", false}}}})),
        if_then(is_given("gradient_compression", {{"not", no_compression}}),
                allows({{"sharded_optimizer", not_true}, {"sharded_gradients", not_true}})),
        if_then(is_given("sharded_optimizer", {{"enum", {false, "false"}}}),
                allows({{"sharded_gradients", not_true}}))}}};
}

}  // namespace dtrain::config
