// The format decides which keys a source of samples has, and what they mean. The experiment file may have those of the
// chosen format; the schema and the documents say of each key what it is in which formats.
#include "experiment/model_data.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "document/value.h"
#include "dtrain/base/text.h"
#include "dtrain/config/diagnostic.h"
#include "experiment/conditions.h"
#include "keys/visitors.h"

namespace dtrain::config {
namespace {

using FormatList = std::vector<FormatSources>;

constexpr const char* kFormatName = "format";
constexpr const char* kTransformsName = "transforms";
constexpr Key kDataTraining{.name = "training", .text = "The samples to train with.", .default_text = "required"};
constexpr Key kDataValidation{.name = "validation",
                              .text = "The samples to validate with; none: nothing is validated.",
                              .more = "The same keys as `data.training`.",
                              .keys_elsewhere = true};

const data::SourceKey* find_source_key(const FormatSources& format, std::string_view name) {
  for (const data::SourceKey& key : format.keys) {
    if (name == key.name) return &key;
  }
  return nullptr;
}

// Returns the names of the keys of all formats, each where it first appears.
std::vector<std::string> source_key_names(const FormatList& formats) {
  std::vector<std::string> names;
  for (const FormatSources& format : formats) {
    for (const data::SourceKey& key : format.keys) {
      if (std::find(names.begin(), names.end(), key.name) == names.end()) names.emplace_back(key.name);
    }
  }
  return names;
}

// The texts of formats, each text once with the words of the formats that have it.
class TextsOfFormats {
 public:
  void add(const char* word, const std::string& text) {
    const auto same = std::ranges::find_if(texts_, [&](const auto& entry) { return entry.first == text; });
    if (same == texts_.end()) {
      texts_.emplace_back(text, std::vector<std::string>{word});
    } else {
      same->second.emplace_back(word);
    }
  }
  // "idx, npy: a file."
  std::vector<std::string> lines() const {
    std::vector<std::string> lines;
    for (const auto& [text, words] : texts_) lines.push_back(join(words, ", ") + ": " + text);
    return lines;
  }

 private:
  std::vector<std::pair<std::string, std::vector<std::string>>> texts_;
};

void declare_source_key(Keys& keys, const FormatList& formats, const std::string& name) {
  TextsOfFormats texts, fallbacks;
  std::vector<std::string> requiring;
  const char* examples = nullptr;
  for (const FormatSources& format : formats) {
    const data::SourceKey* key = find_source_key(format, name);
    if (!key) continue;
    texts.add(format.word, key->text);
    if (*key->fallback) {
      fallbacks.add(format.word, std::string("`") + key->fallback + "`");
    } else {
      requiring.emplace_back(format.word);
    }
    if (!examples) examples = key->examples;
  }
  std::vector<std::string> defaults = fallbacks.lines();
  if (!requiring.empty()) defaults.insert(defaults.begin(), "required for " + join_with_and(requiring));
  const std::string text = join(texts.lines(), " ");
  const std::string default_text = join(defaults, "; ");
  std::string value;
  keys.text({.name = name.c_str(), .text = text.c_str(), .examples = examples, .default_text = default_text.c_str()},
            value, kName);
}

// Declares the keys of a source for all formats; source_rules() has the rules that depend on the format.
void declare_source(Keys& keys, const FormatList& formats, std::vector<TransformStep>& transforms) {
  for (const std::string& name : source_key_names(formats)) declare_source_key(keys, formats, name);
  declare_transforms(keys, transforms, TransformsOf::kNothing);
}

Json source_rules(const FormatList& formats) {
  Json rules = Json::array();
  for (const FormatSources& format : formats) {
    Json source = Json::object();
    for (const std::string& name : source_key_names(formats)) {
      const data::SourceKey* key = find_source_key(format, name);
      if (!key) {
        source["properties"][name] = false;
      } else if (!*key->fallback) {
        source["required"].push_back(name);
      }
    }
    if (format.transforms == TransformsOf::kPictures) source["required"].push_back(kTransformsName);
    source["properties"][kTransformsName] = rules_of_transforms(format.transforms);
    Json rule;
    rule["if"]["required"].push_back(kFormatName);
    rule["if"]["properties"][kFormatName]["const"] = format.word;
    rule["then"]["properties"][kDataTraining.name] = source;
    rule["then"]["properties"][kDataValidation.name] = source;
    rules.push_back(std::move(rule));
  }
  Json all;
  all["allOf"] = std::move(rules);
  return all;
}

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

std::string refusal_of_source_key(const FormatSources& format) {
  std::vector<std::string> names;
  for (const data::SourceKey& key : format.keys) names.emplace_back(key.name);
  return std::string("has no effect with format ") + format.word + "; its " +
         (names.size() == 1 ? "key is " : "keys are ") + join_with_and(names);
}

void refuse_transforms(Section& section, const FormatList& formats, const FormatSources& format) {
  std::vector<std::string> words;
  for (const FormatSources& other : formats) {
    if (other.transforms != TransformsOf::kNothing) words.emplace_back(other.word);
  }
  section.refuse(kTransformsName,
                 std::string("has no effect with format ") + format.word + "; " + join_with_and(words) + " have it");
}

void read_transforms(Section& section, const FormatList& formats, const FormatSources& format,
                     std::vector<TransformStep>& transforms) {
  if (format.transforms == TransformsOf::kNothing) {
    refuse_transforms(section, formats, format);
    return section.finish();
  }
  if (format.transforms == TransformsOf::kPictures && !section.find(kTransformsName))
    section.report_missing(kTransformsName, "a list that brings all pictures to one size");
  KeyReader::read_all(section, [&](Keys& keys) { declare_transforms(keys, transforms, format.transforms); });
}

data::Source read_source(Section section, const FormatList& formats, const FormatSources& format,
                         std::vector<TransformStep>& transforms) {
  data::Source source;
  for (const data::SourceKey& key : format.keys) {
    source[key.name] = key.is_file ? required_path(section, key.name, key.must_be).string()
                                   : filled_text(section, key.name, key.must_be, key.fallback);
  }
  for (const std::string& name : source_key_names(formats)) {
    if (find_source_key(format, name)) continue;
    section.refuse(name, refusal_of_source_key(format));
  }
  read_transforms(section, formats, format, transforms);
  return source;
}

Json source_json(const data::Source& source, const FormatSources& format, std::vector<TransformStep>& transforms) {
  Json json = Json::object();
  for (const data::SourceKey& key : format.keys) {
    if (const auto value = source.find(key.name); value != source.end()) json[key.name] = value->second;
  }
  if (!transforms.empty())
    json.update(PlanWriter::write([&](Keys& keys) { declare_transforms(keys, transforms, format.transforms); }));
  return json;
}

// `Source`: data::Source, or an optional one, which may be null.
template <typename Source>
class SourceForm : public KeyType {
 public:
  SourceForm(Source& source, std::vector<TransformStep>& transforms, const FormatList& formats, std::size_t chosen)
      : source_(source), transforms_(transforms), formats_(formats), format_(formats.at(chosen)) {}
  void read(Section& section, const Key& key) override {
    const Value* value = section.find(key.name);
    if (!value || (kNullable && value->is_null())) return;
    source_ = read_source(section.section(key.name), formats_, format_, transforms_);
  }
  Json to_json() const override {
    const std::optional<data::Source> source = source_;
    return source ? source_json(*source, format_, transforms_) : Json();
  }
  Json schema(const Key&) const override {
    std::vector<TransformStep> none;
    Json mapping = SchemaWriter::write([&](Keys& keys) { declare_source(keys, formats_, none); });
    return kNullable ? Json{{"anyOf", {std::move(mapping), Json{{"type", "null"}}}}} : mapping;
  }
  std::string values() const override { return kNullable ? "mapping or null" : "mapping"; }
  bool needs_keys() const override { return !kNullable; }
  void visit_keys(Keys& keys) override { declare_source(keys, formats_, transforms_); }

 private:
  static constexpr bool kNullable = !std::same_as<Source, data::Source>;
  Source& source_;
  std::vector<TransformStep>& transforms_;
  const FormatList& formats_;
  const FormatSources& format_;
};

// Passes declarations on, with those of the sources between that of the format and those of its settings.
class BehindFormat : public Keys {
 public:
  BehindFormat(Keys& keys, const Declare& declare_sources) : keys_(keys), declare_sources_(declare_sources) {}
  void visit(const Key& key, KeyType& type) override {
    keys_.visit(key, type);
    if (key.name == std::string_view(kFormatName)) declare_sources_(keys_);
  }
  void only(const Only& only, const Declare& declare) override { keys_.only(only, declare); }
  void when_read(const std::function<void(Section&)>& function) override { keys_.when_read(function); }
  void schema_rule(const std::function<Json()>& rule) override { keys_.schema_rule(rule); }

 private:
  Keys& keys_;
  const Declare& declare_sources_;
};

bool has_good_format(Section& section, const std::vector<std::string>& words) {
  const Value* format = section.find(kFormatName);
  return format && format->is_scalar() && std::find(words.begin(), words.end(), format->text) != words.end();
}

}  // namespace

void declare_data(Keys& keys, const std::vector<FormatSources>& formats, std::size_t chosen,
                  const std::function<void(Keys&, const Key& selector)>& declare_format, data::Source& training,
                  std::optional<data::Source>& validation, SourceTransforms& transforms) {
  TextsOfFormats texts;
  for (const FormatSources& format : formats) texts.add(format.word, format.text);
  const std::string text = join(texts.lines(), " ");
  const Keys::Declare declare_sources = [&](Keys& outside) {
    SourceForm training_form(training, transforms.training, formats, chosen);
    SourceForm validation_form(validation, transforms.validation, formats, chosen);
    outside.visit(kDataTraining, training_form);
    outside.visit(kDataValidation, validation_form);
    outside.schema_rule([&] { return source_rules(formats); });
  };
  BehindFormat behind_format(keys, declare_sources);
  declare_format(behind_format, {.name = kFormatName, .text = text.c_str(), .required = ""});
}

std::filesystem::path required_path(Section& section, const std::string& key, const std::string& what_it_is) {
  const std::string text = filled_text(section, key, what_it_is);
  return text.empty() ? std::filesystem::path() : (section.folder() / text).lexically_normal();
}

ModelData read_data_section(const Json& section, const std::filesystem::path& folder) try {
  Collector collector((folder / "data").string());
  const Value value = value_of(section);
  ModelData data = read_model_data(Section(&value, "", value.at, collector));
  collector.throw_if_any();
  return data;
} catch (const ConfigErrors& errors) {
  std::vector<std::string> lines;
  for (const Diagnostic& diagnostic : errors.diagnostics()) lines.push_back(diagnostic.key + ": " + diagnostic.message);
  throw ConfigError(join(lines, "\n"));
}

std::vector<std::string> keys_of_sources() {
  std::vector<std::string> names{kTransformsName};
  for (const std::string& word : dtrain::words_of<data::Format>()) {
    const data::Format format = dtrain::choice_named<data::Format>(word);
    for (const data::SourceKey& key : data::source_keys(format)) names.emplace_back(key.name);
  }
  return names;
}

void read_data_keys(Section& section, const std::vector<std::string>& words, const Keys::Declare& declare) {
  if (!section.find(kDataTraining.name))
    section.report_missing(kDataTraining.name, "where the samples to train with are");
  section.find(kDataValidation.name);
  if (has_good_format(section, words)) {
    KeyReader::read_all(section, declare);
  } else {
    KeyReader::read_required(section, declare);  // the meaning of the other keys depends on it
  }
}

void check_together(Section& section, const LoaderKeys& loader) {
  if (loader.workers == 0) section.refuse("prefetch", "has no effect with workers: 0, where nothing is read ahead");
  if (!loader.shuffle) section.refuse("shuffle_window", "has no effect with shuffle: false");
}

Json what_has_no_effect() {
  return {{"allOf",
           {if_then(is_given("workers", {{"const", 0}}), allows({{"prefetch", false}})),
            if_then(is_given("shuffle", {{"const", false}}), allows({{"shuffle_window", false}})),
            if_then({{"required", {"max_skipped"}}}, {{"required", {"on_error"}}})}}};
}

}  // namespace dtrain::config
