// Closed lists of alternatives, each with settings of its own: codecs, optimizers, data formats, losses. A list is a
// std::variant. Each alternative has a word, which names it in files:
//
//   struct TopK {
//     static constexpr const char* kWord = "topk";
//     double ratio = 0.01;
//   };
//   using Compression = std::variant<NoCompression, ..., TopK>;
//
// An alternative with an empty word applies if a file names none.
#pragma once

#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

namespace dtrain {

template <typename... Alternatives>
const char* word_of(const std::variant<Alternatives...>& choice) {
  return std::visit([](const auto& held) { return held.kWord; }, choice);
}

// Returns the words in the order of the list.
template <typename List>
std::vector<std::string> words_of() {
  return []<typename... Alternatives>(std::type_identity<std::variant<Alternatives...>>) {
    std::vector<std::string> all;
    for (const char* word : {Alternatives::kWord...}) {
      if (*word) all.emplace_back(word);
    }
    return all;
  }(std::type_identity<List>());
}

// Returns the alternative with that word and default settings; the first of the list if no alternative has the word.
template <typename List>
List choice_named(std::string_view word) {
  return [word]<typename... Alternatives>(std::type_identity<std::variant<Alternatives...>>) {
    List choice;
    ((word == Alternatives::kWord ? void(choice = Alternatives{}) : void()), ...);
    return choice;
  }(std::type_identity<List>());
}

}  // namespace dtrain
