// Text tables with aligned columns.
#pragma once

#include <string>
#include <vector>

namespace dsat {

// A header line, a rule and one line per row, with two blanks between columns. A column that
// contains only numbers, which may have a unit, is right-aligned. The result is empty if there are
// no columns. Widths are counted in code points; control characters are escaped. If lines would be
// longer than `max_width` (0: no limit), the last column is wrapped at blanks, to no less than a
// quarter of `max_width`. REQUIRES: every row has columns.size() cells.
std::string FormatTable(const std::vector<std::string>& columns,
                        const std::vector<std::vector<std::string>>& rows, size_t max_width = 0);

// The words in lines of at most `width` code points with `blank` between them; a longer word is not
// broken. Lines after the first one begin with `hanging` blanks.
std::vector<std::string> WrapWords(const std::vector<std::string>& words, const std::string& blank,
                                   size_t width, size_t hanging = 0);
// The same for a text, which is broken at blanks.
std::vector<std::string> WrapText(const std::string& text, size_t width, size_t hanging = 0);

}  // namespace dsat
