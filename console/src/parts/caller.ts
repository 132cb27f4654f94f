import { createContext } from "react";
import { type User, UserRole } from "../gen/retinue/manager/v1/account_service_pb";

/** Who is signed in. What the caller may do is the server's to say; this only hides what would be refused. */
export const CallerContext = createContext<Pick<User, "name" | "role" | "memberships">>({
  name: "",
  role: UserRole.USER,
  memberships: [],
});
