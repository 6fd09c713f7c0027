#include "key_table.h"

#include <utility>

namespace dtrain::config {
namespace {

// As it stands in YAML: {batches: 0}
std::string flow_text(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_object()) return value.dump();
  std::string text;
  for (const auto& [name, inside] : value.items())
    text.append(text.empty() ? "" : ", ").append(name).append(": ").append(flow_text(inside));
  return "{" + text + "}";
}

std::string default_text(const Key& key, const KeyType& type) {
  if (key.default_text) return key.default_text;
  if (key.required || type.needs_keys()) return "required";
  if (!type.has_default()) return "";
  const Json value = type.to_json();
  if (value.is_null()) return "null";
  if (value.is_number_float() && value == static_cast<std::int64_t>(value.get<double>()))
    return std::to_string(value.get<std::int64_t>());
  if (value.is_number()) return value.dump();
  const std::string text = flow_text(value);
  return text.empty() ? "none" : "`" + text + "`";
}

class TableWriter : public Keys {
 public:
  explicit TableWriter(const std::function<bool(const std::string&)>& in_table) : in_table_(in_table) {}

  void visit(const Key& key, KeyType& type) override {
    const std::string path = section_.empty() ? key.name : section_ + "." + key.name;
    if (in_table_(path)) add_row(path, key, type);
    if (key.keys_elsewhere) return;
    const std::string outside = std::exchange(section_, path);
    type.visit_keys(*this);
    section_ = outside;
  }
  std::string table() const { return "| key | value | default | meaning |\n|---|---|---|---|\n" + rows_; }

 private:
  void add_row(const std::string& path, const Key& key, const KeyType& type) {
    std::string values = type.values();
    if (*key.unit) values.append(" ").append(key.unit);
    std::string text = key.text;
    if (*key.more) text.append(" ").append(key.more);
    rows_ += "| `" + path + "` | " + values + " | " + default_text(key, type) + " | " + text + " |\n";
  }

  const std::function<bool(const std::string&)>& in_table_;
  std::string section_;
  std::string rows_;
};

}  // namespace

std::string key_table(const Keys::Declare& declare, const std::function<bool(const std::string& path)>& in_table) {
  TableWriter writer(in_table);
  declare(writer);
  return writer.table();
}

}  // namespace dtrain::config
