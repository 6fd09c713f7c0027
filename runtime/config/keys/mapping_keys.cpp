// Keys whose value is a mapping of further keys, a list, or a length: {batches: n}, {records: n} or {epochs: n}.
#include "dtrain/config/keys.h"
#include "keys/visitors.h"

namespace dtrain::config {
namespace {

class MappingType : public KeyType {
 public:
  // `given`: true if a nullable mapping is there.
  MappingType(const Keys::Declare& declare, MappingUse use, bool* given)
      : declare_(declare), use_(use), given_(given) {}
  void read(Section& section, const Key& key) override {
    const Value* value = section.find(key.name);
    if (use_ == MappingUse::kIfGiven && !value) return;
    if (use_ == MappingUse::kNullable && (!value || value->is_null())) return;
    if (given_) *given_ = true;
    Section inside = section.section(key.name);
    KeyReader::read_all(inside, declare_);
  }
  Json to_json() const override { return is_there() ? PlanWriter::write(declare_) : Json(); }
  Json schema(const Key&) const override {
    Json schema = SchemaWriter::write(declare_);
    if (use_ == MappingUse::kNullable || !schema.contains("required")) schema["type"] = {"object", "null"};
    return schema;
  }
  std::string values() const override { return use_ == MappingUse::kNullable ? "mapping or null" : "mapping"; }
  bool has_default() const override { return use_ == MappingUse::kNullable; }
  bool needs_keys() const override {
    return use_ == MappingUse::kAlways && SchemaWriter::write(declare_).contains("required");
  }
  void visit_keys(Keys& keys) override { declare_(keys); }

 private:
  bool is_there() const { return use_ != MappingUse::kNullable || *given_; }

  const Keys::Declare& declare_;
  MappingUse use_;
  bool* given_;
};

class ListType : public KeyType {
 public:
  ListType(std::vector<Keys::Declare>& items, const std::function<void(std::size_t)>& resize, const Keys::Declare& any)
      : items_(items), resize_(resize), any_(any) {}
  void read(Section& section, const Key& key) override {
    const Value* value = section.find(key.name);
    if (!value) return;
    if (value->kind != Value::Kind::kList) return section.report(*value, key.name, must_be("a list", *value));
    resize_(value->items.size());
    for (std::size_t i = 0; i < value->items.size(); ++i) {
      const Value& item = value->items[i];
      Section inside(&item, section.path_of(key.name) + "[" + std::to_string(i) + "]", item.at, section.collector());
      KeyReader::read_all(inside, items_[i]);
    }
  }
  Json to_json() const override {
    Json list = Json::array();
    for (const Keys::Declare& item : items_) list.push_back(PlanWriter::write(item));
    return list;
  }
  Json schema(const Key&) const override { return {{"type", "array"}, {"items", SchemaWriter::write(any_)}}; }
  std::string values() const override { return "list of mappings"; }
  void visit_keys(Keys& keys) override { any_(keys); }

 private:
  std::vector<Keys::Declare>& items_;
  const std::function<void(std::size_t)>& resize_;
  const Keys::Declare& any_;
};

class ListOfIntegers : public KeyType {
 public:
  ListOfIntegers(std::vector<std::int64_t>& values, const Range& range, bool ascend)
      : values_(values), range_(range), ascend_(ascend) {}
  void read(Section& section, const Key& key) override {
    const Value* value = section.find(key.name);
    if (!value) return;
    if (value->kind != Value::Kind::kList || (ascend_ && value->items.empty()))
      return section.report(*value, key.name, must_be("a list of integers", *value));
    values_.clear();
    for (const Value& item : value->items) {
      const std::int64_t least = values_.empty() || !ascend_ ? range_.min : values_.back() + 1;
      values_.push_back(section.parse_integer(item, key.name, least, least, range_.max));
    }
  }
  Json to_json() const override { return values_; }
  Json schema(const Key&) const override {
    Json schema = {{"type", "array"}, {"items", {{"type", "integer"}, {"minimum", range_.min}}}};
    if (ascend_) {
      schema["minItems"] = 1;
      schema["uniqueItems"] = true;
    } else {
      schema["items"]["maximum"] = range_.max;
    }
    return schema;
  }
  std::string values() const override { return ascend_ ? "list of integers that ascend" : "list of integers"; }

 private:
  std::vector<std::int64_t>& values_;
  const Range range_;
  const bool ascend_;
};

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
  std::string what_it_is() const override { return kLengthForms; }
  bool is_length() const override { return true; }

 private:
  Length& value_;
  std::int64_t min_;
};

}  // namespace

void Keys::visit_list(const Key& key, std::vector<Declare>& items, const std::function<void(std::size_t)>& resize,
                      const Declare& any) {
  ListType type(items, resize, any);
  visit(key, type);
}

void Keys::ascending_integers(const Key& key, std::vector<std::int64_t>& values, const Range& range) {
  ListOfIntegers type(values, range, /*ascend=*/true);
  visit(key, type);
}

void Keys::integers(const Key& key, std::vector<std::int64_t>& values, const Range& range) {
  ListOfIntegers type(values, range, /*ascend=*/false);
  visit(key, type);
}

void Keys::mapping(const Key& key, const Declare& declare) {
  visit_mapping(key, declare, MappingUse::kAlways, nullptr);
}

void Keys::visit_mapping(const Key& key, const Declare& declare, MappingUse use, bool* given) {
  MappingType type(declare, use, given);
  visit(key, type);
}

void Keys::length(const Key& key, Length& value, std::int64_t min) {
  LengthType type(value, min);
  visit(key, type);
}

}  // namespace dtrain::config
