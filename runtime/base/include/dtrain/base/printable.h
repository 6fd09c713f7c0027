// Text on a terminal: a terminal obeys control characters, so a text from a file must not contain any.
#pragma once

#include <string>
#include <string_view>

namespace dtrain {

// kKept: colours and weights ("\x1b[1;31m") stay, which dtrain itself writes on a terminal. They change nothing else.
enum class Styles { kNone, kKept };

// Returns the text as it can be shown: control characters (also U+007F to U+009F), characters that change the direction
// of writing, and bytes that are no UTF-8 become "\u001b" or "\xff". Newlines, tabs and all other characters stay. A
// JSON document keeps its meaning, because these are its own escapes.
std::string printable(std::string_view text, Styles styles = Styles::kNone);

// From now on everything that this program writes to stdout and stderr by stdio is made printable; styles stay where
// the file descriptor is a terminal. To be called once, at the beginning of main(). SystemError.
void make_output_printable();

}  // namespace dtrain
