// Which keys a source of samples has, and what they mean, depends on the format; one that the format does not have is
// an error which says why.
#include "experiment/model_data.h"

#include <algorithm>

#include "keys/key_reader.h"
#include "keys/schema_writer.h"

namespace dtrain::config {
namespace {

std::string filled_text(Section& section, const std::string& key, const std::string& what_it_is,
                        const std::string& fallback = "") {
  const Value* value = section.find(key);
  if (!value) {
    if (fallback.empty()) section.report_missing(key, what_it_is);
    return fallback;
  }
  if (value->is_scalar() && !value->text.empty()) return value->text;
  section.report(*value, key, must_be(what_it_is, *value));
  return fallback;
}

void refuse_of_format(Section& section, const Key& key, const std::string& message) {
  if (const Value* value = section.find(key.name)) section.report(*value, key.name, message);
}

DataSource read_source(Section section, DataFormat format) {
  DataSource source;
  switch (format) {
    case DataFormat::kIdx:
    case DataFormat::kNpy: {
      const std::string what = format == DataFormat::kIdx ? "the path of an IDX file" : "the path of a .npy file";
      source.features = required_path(section, kSourceFeatures.name, what);
      source.target = required_path(section, kSourceTarget.name, what);
      refuse_of_format(section, kSourceFile,
                       "has no effect with this format, which has a file for features and one for target");
      break;
    }
    case DataFormat::kSafetensors: {
      const std::string what = "the name of a tensor in the file";
      source.file = required_path(section, kSourceFile.name, "the path of a .safetensors file");
      source.features_name = filled_text(section, kSourceFeatures.name, what, "features");
      source.target_name = filled_text(section, kSourceTarget.name, what, "target");
      break;
    }
    case DataFormat::kTokens:
      source.file = required_path(section, kSourceFile.name, "the path of a file of tokens");
      for (const Key& key : {kSourceFeatures, kSourceTarget})
        refuse_of_format(section, key, "has no effect with format tokens: a sequence's target is its next tokens");
      break;
  }
  section.finish();
  return source;
}

Json source_json(const DataSource& source, DataFormat format) {
  const Json file = source.file.string();
  if (format == DataFormat::kTokens) return {{kSourceFile.name, file}};
  if (format == DataFormat::kSafetensors) {
    return {{kSourceFile.name, file},
            {kSourceFeatures.name, source.features_name},
            {kSourceTarget.name, source.target_name}};
  }
  return {{kSourceFeatures.name, source.features.string()}, {kSourceTarget.name, source.target.string()}};
}

void declare_source(Keys& keys) {
  for (const Key& key : {kSourceFeatures, kSourceTarget, kSourceFile}) {
    std::string text;
    keys.text(key, text, kName);
  }
}

class TrainingForm : public KeyType {
 public:
  TrainingForm(DataSource& source, const DataFormat& format) : source_(source), format_(format) {}
  void read(Section& section, const Key& key) override {
    if (section.find(key.name)) source_ = read_source(section.section(key.name), format_);
  }
  Json to_json() const override { return source_json(source_, format_); }
  Json schema(const Key&) const override { return SchemaWriter::write(declare_source); }
  std::string values() const override { return "mapping"; }
  bool needs_keys() const override { return true; }
  void visit_keys(Keys& keys) override { declare_source(keys); }

 private:
  DataSource& source_;
  const DataFormat& format_;
};

class ValidationForm : public KeyType {
 public:
  ValidationForm(std::optional<DataSource>& source, const DataFormat& format) : source_(source), format_(format) {}
  void read(Section& section, const Key& key) override {
    const Value* value = section.find(key.name);
    if (value && !value->is_null()) source_ = read_source(section.section(key.name), format_);
  }
  Json to_json() const override { return source_ ? source_json(*source_, format_) : Json(); }
  Json schema(const Key&) const override {
    return {{"anyOf", {SchemaWriter::write(declare_source), Json{{"type", "null"}}}}};
  }
  std::string values() const override { return "mapping or null"; }
  void visit_keys(Keys& keys) override { declare_source(keys); }

 private:
  std::optional<DataSource>& source_;
  const DataFormat& format_;
};

bool has_good_format(Section& section) {
  const Value* format = section.find(kDataFormat.name);
  const std::vector<std::string> words = words_of(kDataFormats);
  return format && format->is_scalar() && std::find(words.begin(), words.end(), format->text) != words.end();
}

}  // namespace

std::unique_ptr<KeyType> source_form(DataSource& source, const DataFormat& format) {
  return std::make_unique<TrainingForm>(source, format);
}

std::unique_ptr<KeyType> source_form(std::optional<DataSource>& source, const DataFormat& format) {
  return std::make_unique<ValidationForm>(source, format);
}

std::filesystem::path required_path(Section& section, const std::string& key, const std::string& what_it_is) {
  const std::string text = filled_text(section, key, what_it_is);
  return text.empty() ? std::filesystem::path() : (section.folder() / text).lexically_normal();
}

ModelData read_model_data(Section section) {
  ModelData data;
  const auto declare = [&](Keys& keys) { declare_keys(keys, data); };
  if (!section.find(kDataTraining.name))
    section.report_missing(kDataTraining.name, "where the samples to train with are");
  section.find(kDataValidation.name);
  if (has_good_format(section)) {
    KeyReader::read_all(section, declare);
  } else {
    KeyReader::read_required(section, declare);  // what the other keys mean depends on it
  }
  return data;
}

Json data_of_formats() {
  return Json::parse(R"({
    "allOf": [
      {
        "if": {"required": ["format"], "properties": {"format": {"enum": ["idx", "npy"]}}},
        "then": {
          "properties": {
            "training": {"required": ["features", "target"], "properties": {"file": false}},
            "validation": {"required": ["features", "target"], "properties": {"file": false}}
          }
        }
      },
      {
        "if": {"required": ["format"], "properties": {"format": {"const": "safetensors"}}},
        "then": {"properties": {"training": {"required": ["file"]}, "validation": {"required": ["file"]}}}
      },
      {
        "if": {"required": ["format"], "properties": {"format": {"const": "tokens"}}},
        "then": {
          "properties": {
            "training": {"required": ["file"], "properties": {"features": false, "target": false}},
            "validation": {"required": ["file"], "properties": {"features": false, "target": false}}
          }
        }
      }
    ]
  })");
}

}  // namespace dtrain::config
