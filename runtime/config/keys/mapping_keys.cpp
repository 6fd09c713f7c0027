// Keys whose value is a mapping of further keys.
#include "dtrain/config/keys.h"
#include "keys/key_reader.h"
#include "keys/plan_writer.h"
#include "keys/schema_writer.h"

namespace dtrain::config {
namespace {

class MappingType : public KeyType {
 public:
  // `given`: of a nullable one, whether it is there.
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

}  // namespace

void Keys::mapping(const Key& key, const Declare& declare) {
  visit_mapping(key, declare, MappingUse::kAlways, nullptr);
}

void Keys::visit_mapping(const Key& key, const Declare& declare, MappingUse use, bool* given) {
  MappingType type(declare, use, given);
  visit(key, type);
}

}  // namespace dtrain::config
