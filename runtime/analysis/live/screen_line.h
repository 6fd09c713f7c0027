// One line of a screen: pieces in styles, cut at the screen's width. What comes from files cannot do anything to the
// terminal: control characters are shown as question marks. One thread.
#pragma once

#include <string>
#include <string_view>

namespace dtrain::analysis {

// Control characters, also those of 8 bits, and what is no UTF-8 become "?".
std::string printable(std::string_view text);
// In columns, a character each. `text` is printable.
int columns_of(std::string_view text);

class ScreenLine {
 public:
  ScreenLine(int width, bool color) : room_(width), color_(color) {}

  // `style`: the numbers of an ANSI sequence, such as "1;32"; nullptr: none.
  ScreenLine& add(std::string_view text, const char* style = nullptr);
  // In so many columns; longer text is cut.
  ScreenLine& left(std::string_view text, int columns, const char* style = nullptr);
  ScreenLine& right(std::string_view text, int columns, const char* style = nullptr);
  int room() const { return room_; }  // columns that are left
  // Without spaces at its end.
  std::string take();

 private:
  int room_;
  bool color_;
  std::string text_;
};

}  // namespace dtrain::analysis
