#include "common/base/nearest.h"

#include <algorithm>

namespace stemma {
namespace {

std::string_view WithoutDashes(std::string_view word) {
  word.remove_prefix(std::min(word.find_first_not_of('-'), word.size()));
  return word;
}

// The only known word that begins with `word`.
std::string Completion(std::string_view word, const std::vector<std::string>& known) {
  std::string found;
  for (const std::string& candidate : known) {
    if (WithoutDashes(candidate).substr(0, word.size()) != word) continue;
    if (!found.empty()) return "";
    found = candidate;
  }
  return found;
}

}  // namespace

size_t EditDistance(std::string_view a, std::string_view b) {
  // Rows of the table for a[0, i - 2], a[0, i - 1] and a[0, i] against all beginnings of b.
  std::vector<size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    before.swap(last);
    last.swap(row);
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row[b.size()];
}

std::string Nearest(std::string_view word, const std::vector<std::string>& known) {
  const std::string_view wanted = WithoutDashes(word);
  if (wanted.empty()) return "";
  if (wanted.size() >= 3) {
    if (std::string completion = Completion(wanted, known); !completion.empty()) return completion;
  }
  std::string nearest;
  size_t least = std::max<size_t>(1, wanted.size() / 3) + 1;  // one change for each three letters
  for (const std::string& candidate : known) {
    const size_t distance = EditDistance(wanted, WithoutDashes(candidate));
    if (distance < least) {
      least = distance;
      nearest = candidate;
    }
  }
  return nearest;
}

}  // namespace stemma
