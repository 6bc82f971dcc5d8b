#include "common/base/tls_options.h"

#include <string>

#include "CLI/CLI.hpp"

namespace stemma {
namespace {

void AddFile(CLI::App* command, const char* name, std::string& path, const char* help) {
  command->add_option(name, path, help)->type_name("FILE");
}

}  // namespace

void AddServerTlsOptions(CLI::App* command, TlsFiles& files) {
  AddFile(command, kTlsCertOption, files.cert,
          "PEM file of the server's certificate and those up to its CA's: clients and workers speak TLS");
  AddFile(command, kTlsKeyOption, files.key, "PEM file of that certificate's key");
  AddFile(command, kTlsCaOption, files.ca,
          "PEM file of CAs: clients and workers must show a certificate that one of them signed");
}

void AddClientTlsOptions(CLI::App* command, TlsFiles& files) {
  AddFile(command, kTlsCaOption, files.ca,
          "PEM file of CAs: speak TLS with a server whose certificate one of them signed");
  AddFile(command, kTlsCertOption, files.cert, "PEM file of the certificate to show where the server asks for one");
  AddFile(command, kTlsKeyOption, files.key, "PEM file of that certificate's key");
}

}  // namespace stemma
