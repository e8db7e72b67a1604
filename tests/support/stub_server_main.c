/* The stub server as a program, to try things by hand. */
#include "tests/support/stub_server.h"

int main(int argc, char **argv)
{
	return stub_server_run(argc, argv);
}
