export async function signOut(): Promise<void> {
  await fetch("/logout", { method: "POST" });
  location.assign("/login");
}
