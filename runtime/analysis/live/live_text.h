// The parts of a live view as lines of text, and the screen line from which they are made. Plain functions and values.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/analysis/live.h"
#include "dtrain/analysis/run_history.h"

namespace dtrain::analysis {

using ScreenLines = std::vector<std::string>;

// Returns a title and a line for each rank, at most `room` lines (0: no limit), and nothing if a title and two lines do
// not fit.
ScreenLines rank_lines(const LiveView& view, const LiveTextOptions& options, int room);
// Returns a title, and for each host a line, its cores and its GPUs.
ScreenLines host_lines(const LiveView& view, const LiveTextOptions& options);

// One line of a screen: pieces in styles, cut at the screen's width. Text from files cannot control the terminal:
// control characters are shown as question marks. One thread.

// Returns the text with "?" for control characters, also those of 8 bits, and for bytes that are not UTF-8.
std::string printable(std::string_view text);
// Returns the width in columns, one for each character. `text` is printable.
int columns_of(std::string_view text);

class ScreenLine {
 public:
  ScreenLine(int width, bool color) : room_(width), color_(color) {}

  // `style`: the numbers of an ANSI sequence, such as "1;32"; nullptr: none.
  ScreenLine& add(std::string_view text, const char* style = nullptr);
  // Add the text in so many columns; longer text is cut.
  ScreenLine& left(std::string_view text, int columns, const char* style = nullptr);
  ScreenLine& right(std::string_view text, int columns, const char* style = nullptr);
  int room() const { return room_; }  // columns that are left
  // Returns the line without spaces at its end.
  std::string take();

 private:
  int room_;
  bool color_;
  std::string text_;
};

// A curve in one line of a terminal. Any thread.

// Returns `columns` block characters over the batches from the first to the last point, the least value lowest. A
// column between two points continues the value before it. "x": the column's values are nan or infinite.
std::string draw_curve(std::span<const CurvePoint> points, int columns);

}  // namespace dtrain::analysis
