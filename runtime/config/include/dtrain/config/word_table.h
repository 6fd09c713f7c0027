// Tables of the words of a file and their meanings. Reader, plan.json, JSON Schema and documents share them.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace dtrain::config {

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

}  // namespace dtrain::config
