// The parts of a live view as lines of text, and the line of a screen that they are made with. Plain functions and
// values.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/analysis/curves.h"
#include "dtrain/analysis/live.h"

namespace dtrain::analysis {

using ScreenLines = std::vector<std::string>;

// The run: how far it is, how fast, what its metrics are, what is wrong.
ScreenLines head_lines(const LiveView& view, const LiveTextOptions& options);
// A title and a line a rank, `room` lines at most (0: as many as it takes); less than a title and two lines is nothing.
ScreenLines rank_lines(const LiveView& view, const LiveTextOptions& options, int room);
// A title; of each host a line, its cores, its GPUs.
ScreenLines host_lines(const LiveView& view, const LiveTextOptions& options);

// One line of a screen: pieces in styles, cut at the screen's width. What comes from files cannot do anything to the
// terminal: control characters are shown as question marks. One thread.

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

// A curve in one line of a terminal. Any thread.

// `columns` block characters over the batches from the first to the last point, the least value lowest; a column
// between two points goes on with the value before it. "x": the values there are nan or infinite.
std::string draw_curve(std::span<const CurvePoint> points, int columns);

}  // namespace dtrain::analysis
