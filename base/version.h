/* Identity of this build. */
#ifndef BASE_VERSION_H
#define BASE_VERSION_H

const char *version_number(void); /* "0.1.0" */
const char *version_build_hash(void); /* commit of the sources, "+" appended when they differ from it */

#endif
