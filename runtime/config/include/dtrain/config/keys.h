// The declaration of a file's keys. Each key is declared once, in declare_keys() beside the struct that holds its
// value: name, type, range or choices, documentation. The default is that of the struct's field. A visitor (Keys) walks
// the declarations. The reader, plan.json, the JSON Schema (runtime/config/keys/) and the tables of docs/experiment.md
// (tests/config/key_table.h) are such visitors.
//
//   struct Prometheus { int port = 0; };
//   inline void declare_keys(Keys& keys, Prometheus& p) {
//     keys.integer({"port", "The port to listen on; 0: any that is free."}, p.port, {0, 65535});
//   }
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "dtrain/base/choices.h"
#include "dtrain/base/json.h"

namespace dtrain::config {

// An entry of a table of the words of a file and their meanings. Reader, plan.json, JSON Schema and documents share it.
template <typename T>
using Word = std::pair<const char*, T>;

// Returns the word of a value; empty: the table has none.
template <typename Table, typename T>
const char* word_of(const Table& table, T value) {
  for (const auto& [word, meaning] : table) {
    if (meaning == value) return word;
  }
  return "";
}

// Returns the meaning of a word that is in the table.
template <typename Table>
auto meaning_of(const Table& table, std::string_view given) {
  for (const auto& [word, meaning] : table) {
    if (given == word) return meaning;
  }
  return table.front().second;
}

template <typename Table>
std::vector<std::string> words_of(const Table& table) {
  std::vector<std::string> words;
  for (const auto& [word, meaning] : table) words.emplace_back(word);
  return words;
}

inline constexpr std::int64_t kMaxLength = 1'000'000'000'000'000;

enum class LengthUnit { kBatches, kRecords, kEpochs };
inline constexpr std::array kLengthUnits{Word<LengthUnit>{"batches", LengthUnit::kBatches},
                                         Word<LengthUnit>{"records", LengthUnit::kRecords},
                                         Word<LengthUnit>{"epochs", LengthUnit::kEpochs}};

// For the error about a missing length.
inline constexpr const char* kLengthForms = "one of {batches: n}, {records: n}, {epochs: n}";

// `{epochs: …}` of a script without an experiment file (`dtrain run`, dtrain.init()), and of an unchanged one: its own
// loop has the length.
inline constexpr std::int64_t kEpochsOfScripts = 1'000'000;

// A distance in training, in batches, records or epochs: `{epochs: 2}`.
struct Length {
  LengthUnit unit = LengthUnit::kBatches;
  std::int64_t count = 0;
  bool operator==(const Length&) const = default;
};

// "2 epochs", "1 batch"
std::string to_string(const Length& length);

// Returns the batches, rounded up: a batch here has global_batch_size records, whatever aggregation_frequency is.
std::int64_t in_batches(const Length& length, std::int64_t global_batch_size, std::int64_t batches_per_epoch);

class Keys;
class Section;  // a mapping that is being read: document/section.h

// The part of a declaration that every type of key has.
struct Key {
  const char* name;
  const char* text;                // the effect of the key; editors and the document show it
  const char* more = "";           // Markdown that the document alone adds
  const char* unit = "";           // of a number
  const char* examples = nullptr;  // good values, as a JSON list
  const char* required = nullptr;  // not null: the key must be given. The text explains a missing key; "": its values
  const char* default_text = nullptr;  // describes a default that the field cannot show; the schema then has no default
  const char* not_yet = nullptr;       // the remedy for a value that is not supported yet
  bool in_plan = true;                 // plan.json shows the key
  bool keys_elsewhere = false;         // the document describes the keys inside at another key
};

// The type of a key's value, bound to the field that holds it.
class KeyType {
 public:
  virtual ~KeyType() = default;
  // Reads the value into the field. A wrong value is reported to the section.
  virtual void read(Section& section, const Key& key) = 0;
  // Returns the field's value in the form of the file.
  virtual Json to_json() const = 0;
  // Returns the allowed values as a JSON Schema.
  virtual Json schema(const Key& key) const = 0;
  // Words that are refused as not supported yet.
  virtual std::vector<std::string> not_yet_words() const { return {}; }
  // Returns the allowed values for the document: "1 to 99".
  virtual std::string values() const = 0;
  // Returns the allowed values for the error about a missing key.
  virtual std::string what_it_is() const { return values(); }
  // False while other keys make this one ineffective; plan.json leaves it out then.
  virtual bool in_effect() const { return true; }
  // True if a key inside is required, so that this key is required, too.
  virtual bool needs_keys() const { return false; }
  virtual bool has_default() const { return true; }
  virtual bool is_length() const { return false; }
  // Visits the keys inside, if the value is a mapping.
  virtual void visit_keys(Keys&) {}
};

struct Range {
  std::int64_t min, max;        // both are allowed
  bool safeguard_only = false;  // max only prevents overflow; the schema leaves it out
};

struct Bounds {
  double min, max;
  bool above_min = false;  // min itself is not allowed
  bool below_max = false;  // max itself is not allowed
  bool open = false;       // there is no maximum
  bool real = false;       // plan.json shows 1.0, not 1
};

struct TextRule {
  const char* schema = "{}";                        // the rule as keywords of a JSON Schema
  bool (*good)(const std::string& text) = nullptr;  // null: every text is good
  const char* must_be = "";                         // for the error: "a name"
  bool bare = false;                                // the error does not say whether the text was quoted
  // Returns an addition to the error: why the text is bad, or what to do. Null: nothing.
  std::string (*why)(const std::string& text) = nullptr;
};
extern const TextRule kAnyText, kName, kOneLine;

// Keys that have an effect only with some words of another key, the selector.
struct Only {
  const char* selector;
  std::vector<std::string> owners;  // the words with which the keys have an effect
  std::vector<std::string> others;  // the words with which they have none
  std::string chosen;               // the selector's word now; empty: none
  bool met() const;
};

enum class MappingUse {
  kAlways,    // null or missing: all defaults
  kNullable,  // null or missing: the field is empty
  kIfGiven,   // missing: all defaults; null is a mapping without keys
};

// A visitor of declarations.
class Keys {
 public:
  using Declare = std::function<void(Keys&)>;

  virtual ~Keys() = default;
  virtual void visit(const Key& key, KeyType& type) = 0;
  // Visits keys that have an effect in some cases only.
  virtual void only(const Only& only, const Declare& declare);
  // Only the reader calls the function, after it has read the keys above: to check keys against each other, or to set a
  // default that depends on them.
  virtual void when_read(const std::function<void(Section&)>&) {}
  // A condition across keys, as a JSON Schema.
  virtual void schema_rule(const std::function<Json()>&) {}

  void boolean(const Key& key, bool& value);
  void text(const Key& key, std::string& value, const TextRule& rule = kAnyText);
  void texts(const Key& key, std::vector<std::string>& value);
  // A relative path starts from the folder of the file. Empty: none.
  void path(const Key& key, std::filesystem::path& value, const TextRule& rule = kAnyText, bool nullable = false);
  void length(const Key& key, Length& value, std::int64_t min);
  void number(const Key& key, double& value, const Bounds& bounds);
  void number(const Key& key, std::optional<double>& value, const Bounds& bounds);
  // A list of exactly so many numbers as the field has.
  void numbers(const Key& key, std::span<double> values, const Bounds& bounds);
  void integer(const Key& key, std::int64_t& value, const Range& range);
  void integer(const Key& key, std::optional<std::int64_t>& value, const Range& range);
  // `auto`, which is `of_auto` in the field, or an integer.
  void auto_or_integer(const Key& key, int& value, const Range& range, int of_auto = 0);
  template <typename T>
  void integer(const Key& key, T& value, const Range& range);
  template <typename T>
  void integer(const Key& key, std::optional<T>& value, const Range& range);
  // One of the table's words. The words of `later` are refused as not supported yet.
  template <typename T, std::size_t N>
  void choice(const Key& key, T& value, const std::array<Word<T>, N>& table,
              const std::vector<std::string>& later = {});
  // One word of a closed list (dtrain/base/choices.h) whose alternatives have no keys, or the word `none`, which stands
  // for an empty field.
  template <typename... Alternatives>
  void choice(const Key& key, std::optional<std::variant<Alternatives...>>& value, const char* none);
  // One of the table's words or null, which stands for T{}.
  template <typename T, std::size_t N>
  void nullable_choice(const Key& key, T& value, const std::array<Word<T>, N>& table,
                       const std::vector<std::string>& later = {});
  // A type that is written by hand.
  void form(const Key& key, const std::unique_ptr<KeyType>& type) { visit(key, *type); }

  void mapping(const Key& key, const Declare& declare);
  template <typename T>
  void mapping(const Key& key, T& settings, MappingUse use = MappingUse::kAlways);
  template <typename T>
  void mapping(const Key& key, std::optional<T>& settings);
  // A list of mappings.
  template <typename T>
  void list(const Key& key, std::vector<T>& items);
  // A list of integers; it may be empty.
  void integers(const Key& key, std::vector<std::int64_t>& values, const Range& range);
  // A list of integers that ascend.
  void ascending_integers(const Key& key, std::vector<std::int64_t>& values, const Range& range);

  // A choice from a closed list (dtrain/base/choices.h). The word of the selector key names the alternative. The
  // alternatives' own keys stand beside the selector; each alternative declares its keys in declare_keys(), a member
  // template. A key that several alternatives declare has the same meaning in all of them. Keys of other alternatives
  // than the chosen one are refused. An alternative has no conditional keys (only_with) of its own.
  template <typename... Alternatives>
  void one_of(const Key& selector, std::variant<Alternatives...>& choice);

  template <typename T, std::size_t N>
  void only_with(const char* selector, const std::array<Word<T>, N>& table, T chosen, std::initializer_list<T> owners,
                 const Declare& declare);

 private:
  struct Alternative {
    std::string word;
    Declare declare;
  };
  void visit_alternatives(const char* selector, const std::vector<Alternative>& alternatives, std::size_t chosen);
  void visit_word(const Key& key, std::string& value, std::vector<std::string> words, std::vector<std::string> later,
                  bool nullable);
  void visit_mapping(const Key& key, const Declare& declare, MappingUse use, bool* given);
  // `items`: one declaration for each mapping of the list; `resize` makes the list as long as it says, and updates
  // `items`. `any`: the declaration of a mapping with its defaults.
  void visit_list(const Key& key, std::vector<Declare>& items, const std::function<void(std::size_t)>& resize,
                  const Declare& any);
};

template <typename T>
void Keys::integer(const Key& key, T& value, const Range& range) {
  auto wide = static_cast<std::int64_t>(value);
  integer(key, wide, range);
  value = static_cast<T>(wide);
}

template <typename T>
void Keys::integer(const Key& key, std::optional<T>& value, const Range& range) {
  std::optional<std::int64_t> wide = value;
  integer(key, wide, range);
  value.reset();
  if (wide) value = static_cast<T>(*wide);
}

template <typename T, std::size_t N>
void Keys::choice(const Key& key, T& value, const std::array<Word<T>, N>& table,
                  const std::vector<std::string>& later) {
  std::string chosen = word_of(table, value);
  visit_word(key, chosen, words_of(table), later, false);
  if (!chosen.empty()) value = meaning_of(table, chosen);
}

template <typename... Alternatives>
void Keys::choice(const Key& key, std::optional<std::variant<Alternatives...>>& value, const char* none) {
  using List = std::variant<Alternatives...>;
  std::vector<std::string> words = dtrain::words_of<List>();
  words.insert(words.begin(), none);
  std::string chosen = value ? dtrain::word_of(*value) : none;
  visit_word(key, chosen, std::move(words), {}, false);
  if (chosen == none) {
    value.reset();
  } else if (!chosen.empty()) {
    value = choice_named<List>(chosen);
  }
}

template <typename T, std::size_t N>
void Keys::nullable_choice(const Key& key, T& value, const std::array<Word<T>, N>& table,
                           const std::vector<std::string>& later) {
  std::string chosen = word_of(table, value);
  visit_word(key, chosen, words_of(table), later, true);
  value = chosen.empty() ? T{} : meaning_of(table, chosen);
}

template <typename T>
void Keys::mapping(const Key& key, T& settings, MappingUse use) {
  visit_mapping(
      key, [&](Keys& inside) { declare_keys(inside, settings); }, use, nullptr);
}

template <typename T>
void Keys::mapping(const Key& key, std::optional<T>& settings) {
  bool given = settings.has_value();
  T inside = settings.value_or(T());
  visit_mapping(
      key, [&](Keys& keys) { declare_keys(keys, inside); }, MappingUse::kNullable, &given);
  settings.reset();
  if (given) settings = std::move(inside);
}

template <typename T>
void Keys::list(const Key& key, std::vector<T>& items) {
  std::vector<Declare> declarations;
  const auto resize = [&](std::size_t size) {
    items.resize(size);
    declarations.clear();
    for (T& item : items) declarations.push_back([&item](Keys& inside) { declare_keys(inside, item); });
  };
  resize(items.size());
  T defaults;
  visit_list(key, declarations, resize, [&](Keys& inside) { declare_keys(inside, defaults); });
}

template <typename... Alternatives>
void Keys::one_of(const Key& selector, std::variant<Alternatives...>& choice) {
  using List = std::variant<Alternatives...>;
  std::string word = dtrain::word_of(choice);
  visit_word(selector, word, dtrain::words_of<List>(), {}, false);
  if (!word.empty() && word != dtrain::word_of(choice)) choice = choice_named<List>(word);
  // Optional, as GCC 12 zeroes members of a tuple beside empty ones that share a base class.
  std::tuple defaults{std::optional(Alternatives())...};
  std::vector<Alternative> alternatives;
  (alternatives.push_back({Alternatives::kWord,
                           [&](Keys& own) {
                             auto* const held = std::get_if<Alternatives>(&choice);
                             (held ? *held : *std::get<std::optional<Alternatives>>(defaults)).declare_keys(own);
                           }}),
   ...);
  visit_alternatives(selector.name, alternatives, choice.index());
}

template <typename T, std::size_t N>
void Keys::only_with(const char* selector, const std::array<Word<T>, N>& table, T chosen,
                     std::initializer_list<T> owners, const Declare& declare) {
  Only only{selector, {}, {}, word_of(table, chosen)};
  for (const auto& [word, meaning] : table) {
    const bool owns = std::find(owners.begin(), owners.end(), meaning) != owners.end();
    (owns ? only.owners : only.others).emplace_back(word);
  }
  this->only(only, declare);
}

}  // namespace dtrain::config
