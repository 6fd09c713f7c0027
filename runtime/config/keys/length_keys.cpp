// Keys whose value is a length: {batches: n}, {records: n} or {epochs: n}.
#include "dtrain/config/keys.h"
#include "keys/key_reader.h"

namespace dtrain::config {
namespace {

const char* text_of(LengthUnit unit) {
  if (unit == LengthUnit::kBatches) return "A batch is global_batch_size records.";
  return unit == LengthUnit::kRecords ? "Samples." : "Passes over the training data.";
}

class LengthType : public KeyType {
 public:
  LengthType(Length& value, std::int64_t min) : value_(value), min_(min) {}
  void read(Section& section, const Key& key) override { value_ = section.length(key.name, value_, min_); }
  Json to_json() const override { return {{word_of(kLengthUnits, value_.unit), value_.count}}; }
  Json schema(const Key&) const override {
    Json units = Json::object();
    for (const auto& [name, unit] : kLengthUnits) {
      units[name] =
          Json{{"description", text_of(unit)}, {"type", "integer"}, {"minimum", min_}, {"maximum", kMaxLength}};
    }
    return {{"type", "object"},
            {"minProperties", 1},
            {"maxProperties", 1},
            {"additionalProperties", false},
            {"properties", std::move(units)}};
  }
  std::string values() const override { return "length"; }
  std::string what_it_is() const override { return "one of {batches: n}, {records: n}, {epochs: n}"; }
  bool is_length() const override { return true; }

 private:
  Length& value_;
  std::int64_t min_;
};

}  // namespace

void Keys::length(const Key& key, Length& value, std::int64_t min) {
  LengthType type(value, min);
  visit(key, type);
}

}  // namespace dtrain::config
