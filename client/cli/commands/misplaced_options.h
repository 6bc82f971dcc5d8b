// An option that stands before the command that takes it, `stemma --server A status`: what to say of it.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace stemma::cli {

// Returns the error text; empty: there is no such option among `arguments`, the words behind the program's name.
std::string MisplacedOption(const CLI::App& app, const std::vector<std::string>& arguments);

}  // namespace stemma::cli
